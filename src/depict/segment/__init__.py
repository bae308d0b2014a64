"""Pictures in, label maps out: the work behind `depict segment`."""
