// Package subnet is the shell around the client of a port's subnet administrator ([sa.Client]). A [Port] belongs to a
// session of the device, as an endpoint does, and serves all interfaces that use the port: each is a [User], which joins
// groups and asks for paths.
//
//	device  --events, views-->  Port  <--joins, paths--  User (one for each interface)
//	                             |  one goroutine: the client, and a queue pair to QP1 of the subnet manager's port
//	User    <----results-------
//
// One goroutine owns the client and the queue pair. Others put events into its inbox and wake it; their calls do not
// block. If the queue pair fails, it is opened again after a pause, and the requests that were lost with it are
// repeated by the client. If the device fails or its session ends, the goroutine closes everything and ends.
package subnet
