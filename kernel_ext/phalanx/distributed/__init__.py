"""Join a world and run collectives on arrays.

Users import the public names from `phalanx`. Other packages import from the modules here: a
supervisor needs only a few of them, and none that loads numpy.
"""
