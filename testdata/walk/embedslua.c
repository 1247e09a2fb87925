/* Runs a file of Lua, with what is left of the arguments. */
#include <lua.h>
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	lua_State *L = luaL_newstate();

	luaL_openlibs(L);
	if (luaL_loadfile(L, argv[1]))
		return 1;
	for (int i = 2; i < argc; i++)
		lua_pushstring(L, argv[i]);
	if (!lua_pcall(L, argc - 2, 0, 0))
		return 0;
	fprintf(stderr, "%s\n", lua_tostring(L, -1));
	return 1;
}
