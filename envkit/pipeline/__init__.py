"""The stages composed: functions that the CLI, `envkit.api` and the fleet's workers all call, so they cannot differ."""
