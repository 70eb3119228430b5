"""What a deployment stands, and what a node asks for, unless told otherwise. No imports: the command line reads it."""

__all__ = ["COLLUDING_FRACTION", "COMPLETE_UP_TO"]

# Of each cohort, rounded up: these may tell the server all they know.
COLLUDING_FRACTION = 0.1
# Up to so many clients everyone is everyone's neighbour.
COMPLETE_UP_TO = 100
