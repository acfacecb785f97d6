-- name: has_rules
select exists (
    select from pabal.subscriptions where service_name = :service and mode = 'rule' and disabled_at is null
);
