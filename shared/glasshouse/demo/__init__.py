"""The demo: one question of the project, answered in a few minutes on two cores.

    demo_study()                two arms, one seed: outcome reward; the same with a monitor in the reward
       └─► run_study            both runs at a time, in two worker processes, with one live display
              └─► compare_demo_runs  the rates and their intervals, from the rows of the rollout log
                     └─► demo.png, demo.html, and the answer in the terminal

`run_demo` does all of it; `glasshouse demo` and `make demo` call it.
"""

from glasshouse.demo.comparison import DemoComparison, compare_demo_runs
from glasshouse.demo.run import demo_study, run_demo

__all__ = ["DemoComparison", "compare_demo_runs", "demo_study", "run_demo"]
