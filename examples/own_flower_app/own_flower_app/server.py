"""What runs beside the SuperLink. The plan, the enrolment and the ledger are in the server's home, not here."""

from gdpfed.flower import server_app

from own_flower_app.task import evaluate, make_model

app = server_app(model=make_model, evaluate=evaluate)
