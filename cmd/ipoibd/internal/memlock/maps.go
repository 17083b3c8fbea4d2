package memlock

import (
	"bytes"
	"fmt"
	"strings"
)

// mapping is a part of the address space that a file is mapped to.
type mapping struct {
	start, end uintptr
	path       string
}

// files returns the readable mappings of files in a text such as
// /proc/self/maps: proc_pid_maps(5).
func files(maps []byte) (out []mapping) {
	for line := range bytes.Lines(maps) {
		if m, ok := parseMapping(string(line)); ok {
			out = append(out, m)
		}
	}
	return out
}

// parseMapping reads a line such as
//
//	00400000-00452000 r-xp 00000000 08:02 173521 /usr/sbin/ipoibd
//
// and reports whether it is a readable mapping of a file: one with an inode.
func parseMapping(line string) (m mapping, ok bool) {
	var perms, offset, device string
	var inode uint64
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &m.start, &m.end, &perms, &offset, &device, &inode)
	if n != 6 || inode == 0 || m.end < m.start || !strings.HasPrefix(perms, "r") {
		return mapping{}, false
	}
	if at := strings.IndexByte(line, '/'); at >= 0 {
		m.path = strings.TrimSpace(line[at:])
	}
	return m, true
}
