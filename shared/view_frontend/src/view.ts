/** A part of the page that follows the address until it is destroyed. */
export interface View {
  update: () => void;
  destroy: () => void;
  /** Handles a key; returns whether it did. */
  onkey?: (event: KeyboardEvent) => boolean;
}
