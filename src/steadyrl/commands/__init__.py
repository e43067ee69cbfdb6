"""The commands of the command line, one a module: arguments in, function calls out."""
