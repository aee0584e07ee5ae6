"""Makes `made` and `appending`, which also run as processes of their own, importable by the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
