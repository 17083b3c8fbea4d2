// Agent is the first program of a guest. As process 1 it starts itself again and
// from then on only reaps orphans; the second one prepares the guest (file
// systems, modules in the order of their names, sysctls, loopback), and serves
// the requests of package protocol from the virtio serial port until the machine
// ends.
//
// Every process that it starts is the leader of a process group of its own, has
// no standard input, and inherits PATH alone. Output is passed on as it comes.
//
// Files of the guest that the agent knows: /modules, which has the modules to
// load.
package main
