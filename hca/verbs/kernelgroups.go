package verbs

import (
	"encoding/hex"
	"os"
	"slices"
	"strings"

	"ipoibd/hca"
)

// devMcast is the list of the link-layer groups of all interfaces (dev_mc_seq_show, net/core/dev_addr_lists.c), in the
// calling thread's network namespace. Reading it does not wait for the rtnl lock.
const devMcast = "/proc/thread-self/net/dev_mcast"

// kernelGroups returns the groups of the kernel's IPoIB interfaces. It returns none if the list cannot be read.
func kernelGroups() []hca.GID {
	text, _ := os.ReadFile(devMcast)
	return parseDevMcast(string(text))
}

// parseDevMcast returns the groups in the text of devMcast whose addresses are those of IPoIB: a byte of flags, the
// multicast QPN in three bytes, and the MGID (RFC 4391 section 9.1.1).
//
//	5    ib0             1     0     00ffffffff12401bffff000000000000000000fb
func parseDevMcast(text string) (out []hca.GID) {
	const length = 4 + len(hca.GID{})
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 5 {
			continue
		}
		if b, err := hex.DecodeString(fields[4]); err == nil && len(b) == length {
			out = append(out, hca.GID(b[4:]))
		}
	}
	slices.SortFunc(out, func(a, b hca.GID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(out)
}
