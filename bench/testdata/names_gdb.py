# Prints what gdb calls the addresses on standard input, as addr2line -a -f -i
# does. gdb has the line of the innermost frame only; -1 stands for the others.
import sys
import gdb

gdb.execute("set print demangle off")
gdb.execute("set print asm-demangle off")
for word in sys.stdin.read().split():
    address = int(word, 16)
    print("%#x" % address)
    place = gdb.find_pc_line(address)
    place = "%s:%d" % (place.symtab.filename, place.line) if place.symtab else "??:0"
    block = gdb.block_for_pc(address)
    named = False
    while block and not block.is_static and not block.is_global:
        if block.function:
            print("%s\n%s" % (block.function.linkage_name, place))
            place, named = "??:-1", True
        outer = block.superblock
        if block.function and outer and not outer.start <= address < outer.end:
            break  # a function that stands within another is no call in it
        block = outer
    if not named:  # a symbol of the ELF table may name it
        symbol = gdb.execute("info symbol %d" % address, to_string=True)
        if not symbol.startswith("No symbol"):
            print("%s\n%s" % (symbol.split()[0], place))
