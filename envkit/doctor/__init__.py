"""What is wrong here: a machine, an image, a log or a verify record diagnosed, with evidence and a change to make."""
