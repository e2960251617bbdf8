"""What can go wrong with a lab, said in one sentence."""


class LabError(Exception):
    """The lab could not do what was asked."""


class LabUnavailableError(LabError):
    """This machine or this user cannot have a lab at all."""
