"""Popular claims about training speed, held to what records of `envkit verify` measured: see docs/claims.md."""
