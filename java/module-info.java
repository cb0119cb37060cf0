/** Collectives, stores and averaging of gradients for the processes of a distributed job. */
module io.syncline {
  exports io.syncline;
}
