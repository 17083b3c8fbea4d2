// Package sm runs an InfiniBand subnet for tests: a real subnet manager, OpenSM, on a simulated switch, and hosts on
// the wire of package ibwire, for example guests.
//
// # The parts
//
//	guest -- wire --+              +-- ibsim -- OpenSM
//	guest -- wire --+-- [Switch] --+
//	[Host] - wire --+
//
// ibsim (Debian package ibsim-utils) simulates a switch and the ports on it, as far as management packets show them.
// OpenSM discovers them, assigns LIDs, and writes the switch's forwarding tables. It also is the subnet administrator
// (SA), which hosts ask to join groups and for paths.
//
// [Switch] carries what ibsim does not, the packets. It forwards by the tables that OpenSM wrote, which it
// reads again every [pollInterval]: unicast by the linear table, multicast by the table of groups. A host that has not
// joined a group therefore does not receive its packets. A packet that ibsim's part of the subnet must receive,
// such as a request to the SA, is relayed to it.
//
// A wire is a pair of datagram sockets. [Host] is a host within the test; a guest gets its end of a wire as an
// open file. The switch informs each host of its port by control frames: when an attribute has changed, and when the
// host asks. The events in them follow from the changes, and a test can add others ([Switch.Raise]).
//
// [Start] runs all of it for a test, with any number of hosts up to [MaxHosts], and [Subnet] controls it.
//
// # Faults
//
// [Switch.SetFaults] drops a share of the requests to the SA, or answers them with "busy". [Switch.SetPathBits] makes a
// host send from another of its LIDs. [Subnet.Unlink], [Subnet.Relink] and [Subnet.ChangeLID] act on a port,
// [Subnet.RestartSM], [Subnet.MoveSM] and [Subnet.MoveLID] on the subnet manager.
//
// # Inside
//
// The pure parts are the messages of ibsim (message.go), management packets (mad.go), the tables (tables.go),
// forwarding (forward.go), relayed requests (relay.go) and control frames (control.go). A mutex of the Switch guards
// them. Each port has three goroutines: one reads the wire, one writes it, one reads what ibsim
// sends to the port. Another polls ibsim. All end with Close.
//
// # Limits
//
// There is one switch, and it reports no attribute of its own links. All ports have an MTU of 2048 bytes, ibsim's.
// Packets between hosts see neither rates nor virtual lanes. The SA's reports are not relayed, because ibsim delivers
// requests only to a subnet manager.
package sm
