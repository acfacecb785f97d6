-- A notice that failed may be asked for again; and the few addresses that refuse us are found among all there are.

-- No reference: what it repeats goes after its own time.
alter table notification.requests add column if not exists again_of uuid;
comment on column notification.requests.again_of is 'The failed request that this one asks for again; that one may be gone.';
create index if not exists requests_again_idx on notification.requests (again_of) where again_of is not null;

create index if not exists addresses_unhealthy_idx
  on notification.addresses (unhealthy_since desc, recipient_type, recipient_id)
  where unhealthy_since is not null;
