"""The paper beside ours: tables and pictures."""
