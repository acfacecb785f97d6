-- One claim takes events of several services, under one lease.

comment on column pabal.event_leases.service is 'Service of the batch; the first by name if it was claimed for several.';
comment on column pabal.event_due.service is 'Target service.';
