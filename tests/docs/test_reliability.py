import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_the_page_describes_every_section_of_the_attack():
    script = (ROOT / "benchmarks" / "attack.py").read_text()
    (sections,) = re.findall(r"^SECTIONS = \((.*?)\)", script, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == sections.split(", ")


@pytest.mark.slow
def test_the_quick_attack_finds_nothing():
    command = [sys.executable, "benchmarks/attack.py", "--quick", "--seed", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert re.search(r"^\d+ attempts, 0 failures", ended.stdout, re.MULTILINE)
