"""Makes `held` and the helpers of the resume proof importable by the tests here."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]
