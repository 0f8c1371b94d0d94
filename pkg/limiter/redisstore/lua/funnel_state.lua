-- funnel_state is the state of a level above 0 at a time: see funnel.lua. A span is rounded up to 26 binary digits, as Go
-- keeps it.
local function funnel_state(at, level, leak, tick)
  local part = fmod(level, leak)
  local span = (level - part) / leak * tick
  local empty = at + span
  if span >= 67108864 then
    local _, digits = math.frexp(span)
    local unit = 2 ^ (digits - 26)
    span = ceil(span / unit) * unit
  end
  if part == 0 then return struct.pack('>dd', empty, span) end
  return struct.pack('>ddd', empty, span, part)
end
