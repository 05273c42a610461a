"""A build plan as the files of a build context, and their lint."""
