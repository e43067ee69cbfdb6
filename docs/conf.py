"""The documentation as a site: `make docs`. Nothing is fetched, and the site opens from disk."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate
import pictures

project = "steadyrl"
copyright = ""
extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["build", "generated"]
html_theme = "furo"
html_title = "steadyrl"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

pictures.generated(Path(__file__).parent / "generated")
generate.guides(Path(__file__).parent)
generate.reference(Path(__file__).parent / "api")


def setup(app):
    """Have links to files of the repository that are not part of the site name the file instead."""

    def name_files(app, page, source):
        source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./([^)]*)\)", r"\1 (`\2`)", source[0])

    app.connect("source-read", name_files)
