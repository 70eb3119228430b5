"""The server of a deployment: its release, its transport, its run."""
