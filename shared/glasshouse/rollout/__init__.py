"""Problems to graded rollouts: collect, grade, penalize."""
