"""Operating a deployment: clients and plans between runs, certificates, the gate, processes, projects."""
