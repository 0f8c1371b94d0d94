-- Publishes a set of rules unless another one was published since the publisher looked.
--
-- KEYS[1]  the hash of all sets: see published.go
-- ARGV[1]  `current` as the publisher saw it, '' for none
-- ARGV[2]  the content's hash
-- ARGV[3]  what is known of the set, JSON
-- ARGV[4]  its files, compressed
-- ARGV[5]  how many versions to keep
-- answer   the new version; 0 if `current` is another
local key = KEYS[1]
if (redis.call('HGET', key, 'current') or '') ~= ARGV[1] then return 0 end
local version = redis.call('HINCRBY', key, 'last', 1)
redis.call('HSET', key, 'info:' .. version, ARGV[3], 'files:' .. version, ARGV[4], 'current', version .. ' ' .. ARGV[2])
for _, field in ipairs(redis.call('HKEYS', key)) do
  local old = tonumber(string.match(field, '^%a+:(%d+)$'))
  if old and old <= version - ARGV[5] then redis.call('HDEL', key, field) end
end
redis.pcall('PUBLISH', key, version) -- a hint: who may not publish it has published the set all the same
return version
