package record

import "slices"

// Level is the layer at which a capture shows packets.
type Level uint8

// Levels.
const (
	Ethernet   Level = iota // frames of the TAP
	IPoIB                   // IPoIB datagrams behind a GRH
	RoCE                    // RoCEv2 datagrams, from the IP header on
	InfiniBand              // InfiniBand packets, from the LRH on
	// NumLevel is the number of levels, for tables.
	NumLevel
)

var levelNames = [NumLevel]string{"ethernet", "ipoib", "roce", "infiniband"}

// linkTypes are the types of "Link-Layer Header Types", https://www.tcpdump.org/linktypes.html.
var linkTypes = [NumLevel]uint16{Ethernet: 1, IPoIB: 242, RoCE: 101, InfiniBand: 197}

func (l Level) String() string {
	if l >= NumLevel {
		return "unknown"
	}
	return levelNames[l]
}

// ParseLevel returns the level of a name; ok is false if there is none.
func ParseLevel(name string) (l Level, ok bool) {
	i := slices.Index(levelNames[:], name)
	return Level(max(i, 0)), i >= 0
}

// Levels returns the names of all levels.
func Levels() []string { return slices.Clone(levelNames[:]) }

// LinkType returns the link type of the packets in a capture file.
func (l Level) LinkType() uint16 { return linkTypes[l] }

// Kind returns the kind of the records that the level shows.
func (l Level) Kind() Kind {
	if l == Ethernet {
		return Frame
	}
	return Message
}
