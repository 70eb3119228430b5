"""What server and nodes of a deployment share: enrolment, terms, packets, models as vectors."""
