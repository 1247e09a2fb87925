/* Runs a file of PHP. */
#include <sapi/embed/php_embed.h>

int main(int argc, char **argv)
{
	PHP_EMBED_START_BLOCK(argc, argv)
	zend_file_handle file;
	zend_stream_init_filename(&file, argv[1]);
	php_execute_script(&file);
	PHP_EMBED_END_BLOCK()
	return 0;
}
