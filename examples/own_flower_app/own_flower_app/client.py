"""What runs on a node, for each message. Its budget, keys and ledger are in the node's home, not here."""

from gdpfed.flower import client_app

from own_flower_app.task import load_data, make_model, train

app = client_app(model=make_model, data=load_data, train=train)
