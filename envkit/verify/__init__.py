"""Drive the payload inside an image and judge, outside and purely, what it reported."""
