"""The course's own solutions, one file a lesson: what a lesson goes on with where an exercise is not solved."""
