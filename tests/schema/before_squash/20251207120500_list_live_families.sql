-- What is shown of a service's tokens: those that live, counted and listed without reading those that ended.
create index if not exists idx_token_families_live on public.token_families (service_name, expires_at desc, id desc)
  where revoked_at is null;
