// Shows the page in the theme that the user has chosen in Airflow, whose UI keeps the choice in the storage of this origin.
"use strict";
(() => {
  const show = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme");
  };
  show();
  addEventListener("storage", show);
})();
