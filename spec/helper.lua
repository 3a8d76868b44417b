-- Read by busted before any spec: the modules of this checkout come first, wherever busted was started.
local root = debug.getinfo(1, "S").source:match("^@(.*)spec/helper%.lua$")
package.path = root .. "lua/?.lua;" .. root .. "lua/?/init.lua;" .. package.path
