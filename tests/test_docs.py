"""Numbers in the README and the docs are those of the committed result files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_pages_say_what_the_result_files_say():
    ran = subprocess.run([sys.executable, ROOT / "docs/build.py", "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_every_local_link_leads_somewhere():
    import re

    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
