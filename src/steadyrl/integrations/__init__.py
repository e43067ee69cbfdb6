"""steadyrl inside other libraries' training loops."""
