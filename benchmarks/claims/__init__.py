"""Popular claims about training speed, compared with records of `envkit verify`: see docs/claims.md."""
