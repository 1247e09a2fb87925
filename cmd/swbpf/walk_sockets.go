package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// readSockets reads what the sockets of the process's network namespace are connected to.
func (r *waitReader) readSockets() {
	r.sockets = make(map[string]string)
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", r.pid, kind))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if inode, ends, ok := parseSocket(kind, lines.Text()); ok {
				r.sockets[inode] = ends
			}
		}
		f.Close()
	}
}

// parseSocket reads a line of /proc/net/tcp, of udp, their counterparts for IPv6, or unix.
func parseSocket(kind, line string) (inode, ends string, ok bool) {
	f := strings.Fields(line)
	if kind == "unix" {
		if len(f) < 8 {
			return "", "", false // it has no path
		}
		return f[6], "unix " + f[7], true
	}
	if len(f) < 10 {
		return "", "", false
	}
	local, ok1 := parseEnd(f[1])
	remote, ok2 := parseEnd(f[2])
	if !ok1 || !ok2 {
		return "", "", false
	}
	ends = strings.TrimSuffix(kind, "6") + " " + local.String()
	if remote.Port() != 0 {
		ends += " > " + remote.String()
	}
	return f[9], ends, true
}

// parseEnd reads an address and a port: "0100007F:1F90". Each word of the address has the
// bytes of this machine's order, which is little-endian.
func parseEnd(s string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(s, ":")
	var addr []byte
	for ; len(words) >= 8; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		addr = binary.LittleEndian.AppendUint32(addr, uint32(word))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	a, ok := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok && err == nil
}
