comment on column pabal.event_leases.service is 'Service the batch was claimed for.';
comment on column pabal.event_due.service is 'Target service; a claim is always for one service.';
