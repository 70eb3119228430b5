"""Operating a deployment: certificates, the gate, processes, projects."""
