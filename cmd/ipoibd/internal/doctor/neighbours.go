package doctor

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/diagnose"
)

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
func neighbourTables() (out []diagnose.NeighbourTable, _ error) {
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
		out = append(out, diagnose.NeighbourTable{
			Name:    strings.TrimRight(string(attrs[ndtaName].Value), "\x00"),
			Entries: int(binary.NativeEndian.Uint32(config[ndtcEntries:])),
			Limit:   int(binary.NativeEndian.Uint32(most)),
			Fulls:   binary.NativeEndian.Uint64(stats[ndtsTableFulls:]),
		})
	}
	return out, nil
}
