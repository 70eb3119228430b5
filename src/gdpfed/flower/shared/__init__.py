"""What server and nodes of a deployment share: homes, enrolment, terms, packets."""
