-- acquire + release, lease table, release ends the lease in its row
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
INSERT INTO lease_update AS l (name, owner, token, expires_at)
    VALUES (:name::text, :owner::text, 1, clock_timestamp() + interval '30 s')
    ON CONFLICT (name) DO UPDATE
        SET owner = excluded.owner, token = l.token + 1, expires_at = excluded.expires_at
        WHERE l.expires_at < clock_timestamp()
    RETURNING token;
UPDATE lease_update SET expires_at = '-infinity' WHERE name = :name::text AND owner = :owner::text;
