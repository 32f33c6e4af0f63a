// Package hosts reads which hosts a job runs on and decides how many ranks each of them gets. It opens no
// connection and looks up no name: what it returns is what the user wrote, checked.
//
// A host is written
//
//	[user@]name[:slots]      name may have ranges: node[01-16,20]
//	[user@][v6 address][:slots]   as in [2001:db8::7]:8 or [fe80::1%eth0]
//
// In a host file there is one per line; `slots=N` behind white space is the same as `:N`, and a # at the start of
// a word begins a comment. With -H they are separated by commas.
package hosts
