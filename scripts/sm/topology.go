package sm

import (
	"fmt"
	"strings"
)

// MaxHosts is the largest number of hosts: ibsim accepts ten clients, and OpenSM, the switch itself and saquery are three.
const MaxHosts = 7

// guid returns the GUID of the node on a port of the switch; that of its own port is one more.
func guid(number int) uint64 { return 0x0002c90300000000 + uint64(number)<<12 }

const switchGUID = 0x0002c903000000ff

// nodeID returns the name of a node, by which clients attach to it.
func nodeID(number int) string { return fmt.Sprintf("H-%016x", guid(number)) }

// topology describes a switch and the nodes on its ports 1 to n, in ibnetdiscover's syntax.
func topology(n int) string {
	var sw, nodes strings.Builder
	fmt.Fprintf(&sw, "switchguid=0x%016x\nSwitch\t%d \"S-%016x\"\t\t# \"switch\" base port 0 lid 0 lmc 0\n", uint64(switchGUID), n, uint64(switchGUID))
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&sw, "[%d]\t\"%s\"[1](%x) \t\t# \"node%d\" lid 0 4xEDR\n", i, nodeID(i), guid(i)+1, i)
		fmt.Fprintf(&nodes, "\ncaguid=0x%016x\nCa\t1 \"%s\"\t\t# \"node%d\"\n", guid(i), nodeID(i), i)
		fmt.Fprintf(&nodes, "[1](%x) \t\"S-%016x\"[%d]\t\t# lid 0 lmc 0 \"switch\" lid 0 4xEDR\n", guid(i)+1, uint64(switchGUID), i)
	}
	return sw.String() + nodes.String()
}
