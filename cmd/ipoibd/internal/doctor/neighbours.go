package doctor

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NeighbourTable is a table of the kernel, which all network namespaces share.
type NeighbourTable struct {
	Name    string // arp_cache or ndisc_cache
	Entries int
	Limit   int    // gc_thresh3, in entries
	Fulls   uint64 // how often since the boot there was no room for an entry
}

// sysctls returns the part of the sysctls' names that stands for the table.
func (t NeighbourTable) sysctls() string {
	if t.Name == "ndisc_cache" {
		return "net.ipv6.neigh.default"
	}
	return "net.ipv4.neigh.default"
}

// neighboursFull finds tables that were full while the daemon was watched.
func neighboursFull(f *Facts) (out []Finding) {
	for _, t := range f.Neighbours {
		for _, was := range f.NeighboursEarlier {
			if was.Name != t.Name || t.Fulls <= was.Fulls {
				continue
			}
			name := t.sysctls()
			out = append(out, Finding{
				What:     "the kernel's neighbour table is full, so packets to hosts that are not in it are lost",
				Evidence: fmt.Sprintf("%s has %d entries of at most %d, and had no room for %d more while it was watched", t.Name, t.Entries, t.Limit, t.Fulls-was.Fulls),
				Advice:   "make room on the host; if the network has fewer hosts, one of them sends from forged addresses ('ip neigh' lists them, and 'ipoibd peers' their GIDs)",
				Command:  fmt.Sprintf("sysctl -w %[1]s.gc_thresh2=%[2]d %[1]s.gc_thresh3=%[3]d", name, 8*t.Limit, 16*t.Limit),
			})
		}
	}
	return out
}

// Attributes of RTM_GETNEIGHTBL (linux/neighbour.h), and offsets in their structures.
const (
	ndtaName    = 1
	ndtaThresh3 = 4
	ndtaConfig  = 5
	ndtaStats   = 7

	sizeofNdtmsg    = 4
	ndtcEntries     = 4  // in struct ndt_config, 32 bits
	ndtsTableFulls  = 80 // in struct ndt_stats, 64 bits
	sizeofNdtStats  = 88
	sizeofNdtConfig = 32
)

// neighbourTables returns the kernel's neighbour tables of IPv4 and IPv6.
func neighbourTables() (out []NeighbourTable, _ error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGHTBL, unix.NLM_F_DUMP)
	req.AddRawData(make([]byte, sizeofNdtmsg))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGHTBL)
	if err != nil {
		return nil, fmt.Errorf("list the neighbour tables: %w", err)
	}
	for _, m := range msgs {
		if len(m) < sizeofNdtmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttrAsMap(m[sizeofNdtmsg:])
		if err != nil {
			return nil, fmt.Errorf("list the neighbour tables: %w", err)
		}
		config, stats, most := attrs[ndtaConfig].Value, attrs[ndtaStats].Value, attrs[ndtaThresh3].Value
		if len(config) < sizeofNdtConfig || len(stats) < sizeofNdtStats || len(most) < 4 {
			continue // the parameters of a netdev
		}
		out = append(out, NeighbourTable{
			Name:    strings.TrimRight(string(attrs[ndtaName].Value), "\x00"),
			Entries: int(binary.NativeEndian.Uint32(config[ndtcEntries:])),
			Limit:   int(binary.NativeEndian.Uint32(most)),
			Fulls:   binary.NativeEndian.Uint64(stats[ndtsTableFulls:]),
		})
	}
	return out, nil
}
