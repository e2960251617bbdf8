"""The release that this stand-in stands in for; written anew when it is installed on a host."""

__version__ = "0.5.10"
