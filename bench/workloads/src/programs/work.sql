-- The work of `sqlite`: a table and its indexes grow, are searched, joined, changed and shrunk. @ROWS@ stands for a number.
PRAGMA cache_size = 500;
PRAGMA synchronous = OFF;
CREATE TABLE item (id INTEGER PRIMARY KEY, owner INTEGER, name TEXT, price INTEGER);
CREATE TABLE owner (id INTEGER PRIMARY KEY, name TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @ROWS@)
INSERT INTO item SELECT i, i * 7919 % 997, printf('item %d of %x', i * 31 % 1009, i * 2654435761 % 4294967296), i * 104729 % 10007 FROM n;
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 996)
INSERT INTO owner SELECT i, printf('owner %05d', i * 613 % 997) FROM n;
COMMIT;
CREATE INDEX item_by_owner ON item (owner, price);
CREATE INDEX item_by_name ON item (name);
SELECT count(*), sum(price), min(name), max(name) FROM item;
SELECT owner.name, count(*), sum(item.price) FROM owner JOIN item ON item.owner = owner.id GROUP BY owner.id ORDER BY 3 DESC, 1 LIMIT 50;
SELECT name, price FROM item WHERE name LIKE '%ff%' ORDER BY price, name LIMIT 50;
SELECT count(*) FROM item AS a JOIN item AS b ON a.owner = b.owner AND a.price < b.price WHERE a.id % 64 = 0;
BEGIN;
UPDATE item SET price = price + id % 13, name = name || '+' WHERE id % 5 = 0;
DELETE FROM item WHERE id % 7 = 0;
COMMIT;
SELECT price / 1000, count(*), group_concat(id % 10, '') FROM (SELECT * FROM item ORDER BY id LIMIT 3000) GROUP BY 1 ORDER BY 1;
SELECT count(*), sum(price), sum(length(name)) FROM item;
PRAGMA integrity_check;
